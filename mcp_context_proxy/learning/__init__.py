"""What use teaches: which tools were used for which queries, and how that raises them in later searches."""
