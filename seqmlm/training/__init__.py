"""`seqmlm train`: from files to a model that is evaluated, calibrated and registered."""
