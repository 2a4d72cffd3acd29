"""The small cat-or-dog ViT: teachers, pretraining, a student."""
