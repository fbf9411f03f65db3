"""RL data: records transformed into JSON lines."""
