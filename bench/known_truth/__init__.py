"""Tasks whose cause is known by construction: does an explanation point at it?"""
