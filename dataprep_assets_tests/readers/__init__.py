"""The trainers' own libraries, used for reading in separate processes; see `process`."""
