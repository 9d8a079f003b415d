"""Non-centring read from the model: which variable is the location or the scale of which, and how far to undo it."""
