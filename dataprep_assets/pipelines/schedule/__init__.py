"""Pipeline of training schedules: the samples that a training run reads at each step, from other datasets' token bins."""

DATASETS = {"TrainingSchedule": "ScheduleDataset"}
"""Component (in `component.py`) → its dataset class (in `dataset.py`)."""
