"""Trained models for other programs: ONNX and torch.export files that take physical fields."""

from pibert.export.exporting import TARGETS, Exported, export_model

__all__ = ["TARGETS", "Exported", "export_model"]
