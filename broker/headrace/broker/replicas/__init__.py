"""The replicas of this broker: which logs it leads and follows, and how it follows."""
