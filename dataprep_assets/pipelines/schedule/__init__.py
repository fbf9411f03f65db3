"""The pipeline of schedules: what a training run reads at each step, from the token bins of other datasets."""

DATASETS = {"TrainingSchedule": "ScheduleDataset"}
"""Component, in `component.py` → the class of its datasets, in `dataset.py`."""
