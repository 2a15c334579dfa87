"""Answers of a trained model to sources of the user's."""
