"""The kinds of records that say what the warehouse found, and how drills ended."""

from headrace.audit.topic.doubled import DoubledRecord
from headrace.audit.topic.drills import DrillRecord
from headrace.audit.topic.said_of_tables import VerifiedRecord

TestedRecord = VerifiedRecord | DoubledRecord | DrillRecord
