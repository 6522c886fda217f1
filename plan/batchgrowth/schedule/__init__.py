"""The plan of a training: stages in closed form, and the steps in them. Pure."""
