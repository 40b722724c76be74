"""The kinds of records that say what the warehouse found."""

from headrace.audit.topic.doubled import DoubledRecord
from headrace.audit.topic.said_of_tables import VerifiedRecord

TestedRecord = VerifiedRecord | DoubledRecord
