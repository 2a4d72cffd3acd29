"""Language models: what only they are asked. Why one answer rather than another, and which documents one rests on."""
