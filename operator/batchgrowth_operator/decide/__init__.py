"""From the observed state to a decision. Pure: no clock, no API, no kopf."""
