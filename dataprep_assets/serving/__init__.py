"""API for training machines that read a published release: schedule, shard cache, readers and plan.

Importing it does not import Dagster, TensorFlow or torch.
"""

from dataprep_assets.serving.window.events import WindowEvent, WindowStatus
from dataprep_assets.serving.window.keep_policy import CacheLimit
from dataprep_assets.serving.window.plan import WindowPlan, plan_window
from dataprep_assets.serving.window.readers import Shard, torch_dataset
from dataprep_assets.serving.window.release import Release, ReleaseLocation
from dataprep_assets.serving.window.schedule import Schedule
from dataprep_assets.serving.window.shard_window import ShardWindow
from dataprep_assets.serving.window.window_state import WindowState

__all__ = [
    "CacheLimit",
    "Release",
    "ReleaseLocation",
    "Schedule",
    "Shard",
    "ShardWindow",
    "WindowEvent",
    "WindowPlan",
    "WindowState",
    "WindowStatus",
    "plan_window",
    "torch_dataset",
]
