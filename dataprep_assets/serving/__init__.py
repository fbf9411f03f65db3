"""What a training machine needs of a published release: the schedule, the window, its readers, a plan.

Importing it brings neither Dagster nor TensorFlow nor torch.
"""

from dataprep_assets.serving.plan import WindowPlan, plan_window
from dataprep_assets.serving.readers import Shard, torch_dataset
from dataprep_assets.serving.release import Place, Release
from dataprep_assets.serving.schedule import Schedule
from dataprep_assets.serving.shard_window import KeepBytes, ShardWindow, WindowEvent, WindowStatus

__all__ = [
    "KeepBytes",
    "Place",
    "Release",
    "Schedule",
    "Shard",
    "ShardWindow",
    "WindowEvent",
    "WindowPlan",
    "WindowStatus",
    "plan_window",
    "torch_dataset",
]
