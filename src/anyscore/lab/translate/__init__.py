"""What a trained model says to sources of the user's."""
