"""What should happen next: from what was seen to a decision. Pure: no clock, no API, no kopf."""
