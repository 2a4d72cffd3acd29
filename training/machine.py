"""Words on the console, and the device that the work is done on."""

import time

import torch


def say(*words):
    print(time.strftime("%H:%M:%S"), *words, flush=True)


def pick_device():
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")
