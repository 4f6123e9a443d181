"""The pipeline of the CNN models."""
