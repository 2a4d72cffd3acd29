"""Side-by-side timings against peers: ``make bench`` runs them all and prints ratios."""
