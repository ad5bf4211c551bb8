"""Stand-in for a training script: it writes a checkpoint per epoch, and a model at the end."""

import argparse
import json
import os
from pathlib import Path

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=1)
epochs = parser.parse_args().epochs

loss = 1.0
for epoch in range(1, epochs + 1):
    loss /= 2
    print(f"{os.environ['RUN_NAME']}: epoch {epoch}, loss {loss}")
    Path("checkpoints", f"epoch-{epoch}.json").write_text(json.dumps({"loss": loss}))
Path("outputs", "model.json").write_text(json.dumps({"epochs": epochs, "loss": loss}))
