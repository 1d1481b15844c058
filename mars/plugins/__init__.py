"""Plug-ins: objectives and decoders of your own, in one Python file (docs/your_own_variant.md).

A plug-in is a file listed under a study's ``plugins:``, or a module that an installed package
names in the entry-point group ``mars.plugins``. It registers by tables at its top level:

    OBJECTIVES = {"my_objective": MyObjective}    # subclasses of mars.training.objectives.Objective
    DECODERS = {"my_decoder": MyDecoder}          # subclasses of mars.decoding.base.BoundDecoder

Their keys are written out as text, so that which names a plug-in brings is known without running
it (``files``). ``load`` imports plug-ins and holds their classes to the contract; ``probe`` runs
them once on a tiny random model, before any training.
"""

from __future__ import annotations

from mars.plugins.files import Plugin, PluginError, find_plugins, resolve_plugins

__all__ = ["Plugin", "PluginError", "find_plugins", "resolve_plugins"]
