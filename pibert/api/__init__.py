"""The short Python interface: ``pibert.read``, ``flow``, ``fit``, ``load`` and ``compare``.

``pibert`` itself offers the names; modules import what they need when they are called.
"""
