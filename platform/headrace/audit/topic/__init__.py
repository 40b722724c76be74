"""The audit topics: their records, which of them are believed, how they are read, published and kept."""
