"""The atlas: what each chat template makes of each kind of conversation, and which of its tokens are in the loss."""
