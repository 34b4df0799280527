"""Live systems, each in a process of its own.

``live.py`` starts ``worker.py`` with the Python of a system, so modules here import only this
package, numpy and, in ``load``, what their system needs.
"""
