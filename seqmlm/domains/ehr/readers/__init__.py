"""Patient records from the systems that keep them: one module a format, one record a subject (`History`)."""
