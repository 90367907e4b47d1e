"""Run an ONNX file on saved inputs, in a separate process: ``run_onnx.py MODEL INPUTS OUTPUTS``.

It imports onnxruntime and NumPy but nothing of this package, like a program without torch. INPUTS
is an .npz with arrays ``NUMBER/NAME`` of one or several batches; OUTPUTS gets ``NUMBER/frames``.
"""

import sys

import numpy as np
import onnxruntime


def main(model: str, inputs: str, outputs: str) -> None:
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    batches: dict[str, dict[str, np.ndarray]] = {}
    with np.load(inputs, allow_pickle=False) as saved:
        for key in saved:
            number, _, name = key.partition("/")
            batches.setdefault(number, {})[name] = saved[key]
    frames = {f"{k}/frames": session.run(["frames"], batch)[0] for k, batch in batches.items()}
    if "torch" in sys.modules:
        raise SystemExit("expected to run without torch, found it imported")
    np.savez(outputs, **frames)


if __name__ == "__main__":
    main(*sys.argv[1:])
