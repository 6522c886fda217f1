"""Decides what one pass writes. Pure: each rule gets the time as a `Clock`; no API, no kopf."""
