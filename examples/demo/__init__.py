"""The demo: the main job on real input, from produce to Spark. `__main__` tells it step by step."""
