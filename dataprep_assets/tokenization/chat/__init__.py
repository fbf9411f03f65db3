"""Conversations as training sequences: checked, rendered with a template, encoded, and masked for the loss."""
