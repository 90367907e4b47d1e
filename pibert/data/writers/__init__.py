"""Frames into files of several formats, one block at a time (``frames.FrameWriter``)."""

from pibert.data.writers.frames import Block, Description, FrameWriter, blocks_of, describe
from pibert.data.writers.native import NativeWriter
from pibert.data.writers.netcdf import NetcdfWriter
from pibert.data.writers.paraview import VtkWriter, XdmfWriter

__all__ = ["WRITERS", "Block", "Description", "FrameWriter", "blocks_of", "describe"]

WRITERS: dict[str, type[FrameWriter]] = {
    ".h5": NativeWriter,
    ".nc": NetcdfWriter,
    ".pvd": VtkWriter,
    ".xdmf": XdmfWriter,
}
"""By the suffix of the file."""
