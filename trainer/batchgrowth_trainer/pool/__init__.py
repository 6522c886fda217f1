"""The workers as the driver sees them: registered, preparing, ready or leaving, and the calls to them."""
