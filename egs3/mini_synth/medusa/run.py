"""Stages of this recipe: python run.py --help; the order is in README.md."""

from espnet3.systems.launch import launch

from espnet_medusa.espnet3.system import CONFIGS, MedusaSystem

if __name__ == "__main__":
    launch(MedusaSystem, conf_package=CONFIGS)
