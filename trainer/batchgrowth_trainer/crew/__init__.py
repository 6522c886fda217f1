"""The workers as the driver sees them: who is registered, who is ready, who has left, and how to call them."""
