"""Forecasts, before a job runs, of the minutes, worker-hours and money that it will take, also with other settings.

`step_time` says how long an update takes, `networks` has named constants and reads those of a file, `course_time` adds
up the updates of a plan, `prices` says what a worker costs, and the other modules answer questions about the sum.
Nothing here looks at a clock: constants come from a user, or from the trainer, which measures or fits them.
"""
