"""Read patient data from the formats of different systems. Each subject becomes one record (`History`)."""
