"""The corpus pipeline: text from its source to validated token bins and views."""
