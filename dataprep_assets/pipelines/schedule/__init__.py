"""Pipeline of training schedules: the samples of other datasets' token bins that a run reads at each step."""

DATASETS = {"TrainingSchedule": "ScheduleDataset"}
"""Component (in `component.py`) → its dataset class (in `dataset.py`)."""
