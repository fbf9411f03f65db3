"""Conversations as training sequences: messages checked, rendered by a template, encoded, masked for the loss."""
