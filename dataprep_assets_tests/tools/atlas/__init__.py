"""The atlas: the rendering of each kind of conversation by each chat template, and the tokens in the loss."""
