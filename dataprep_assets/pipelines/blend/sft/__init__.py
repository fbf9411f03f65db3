"""The stage `sft` of a blend: packed conversations with a loss mask."""
