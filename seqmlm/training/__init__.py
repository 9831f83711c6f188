"""`seqmlm train`: from files to an evaluated, calibrated and registered model."""
