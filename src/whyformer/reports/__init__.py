"""The report: one page with a prediction, its explanations, and how far each can be trusted."""
