"""How the learning rate falls by epoch: one schedule, one module."""

from batchgrowth.extend import ScheduleEntry
from batchgrowth.schema.choice import Registry

SCHEDULES = Registry("learningRate.schedule.type", "Constant", ScheduleEntry, __name__, __path__)
