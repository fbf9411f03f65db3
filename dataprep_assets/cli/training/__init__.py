"""Commands on training runs, schedules and releases."""
