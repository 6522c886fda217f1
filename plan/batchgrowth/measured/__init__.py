"""What training measures and what that decides: the course, its forecast, and the verdict of evaluations."""
