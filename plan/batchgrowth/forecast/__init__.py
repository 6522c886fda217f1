"""What a job will take before it runs: minutes, worker-hours and money, and what other settings would take.

`step_time` says how long an update takes, `networks` has constants with a name and reads those of a file, `course_time`
adds the updates of a plan up, and the other modules answer questions about the sum. Nothing here looks at a clock:
constants come from a user, from a measurement or from a fit, which are the trainer's.
"""
