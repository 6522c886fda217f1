"""Decides what one pass writes. Pure: no clock, no API, no kopf."""
