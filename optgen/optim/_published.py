"""Published optimizers that torch does not have. Each is imported when it is first used."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from torch.optim import Optimizer

if TYPE_CHECKING:
    from optgen.generated.accsgd import AccSGD as AccSGD
    from optgen.generated.acprop import ACProp as ACProp
    from optgen.generated.adabelief import AdaBelief as AdaBelief
    from optgen.generated.adabound import AdaBound as AdaBound
    from optgen.generated.adafactor_bv import AdafactorBV as AdafactorBV
    from optgen.generated.adafactor_hf import AdafactorHF as AdafactorHF
    from optgen.generated.adagc import AdaGC as AdaGC
    from optgen.generated.adahessian import AdaHessian as AdaHessian
    from optgen.generated.adai import Adai as Adai
    from optgen.generated.adam_h import AdamH as AdamH
    from optgen.generated.adam_mini import AdamMini as AdamMini
    from optgen.generated.adamaxw import AdaMaxW as AdaMaxW
    from optgen.generated.adamc import AdamC as AdamC
    from optgen.generated.adamg import AdamG as AdamG
    from optgen.generated.adamod import AdaMod as AdaMod
    from optgen.generated.adamp import AdamP as AdamP
    from optgen.generated.adams import AdamS as AdamS
    from optgen.generated.adamuon import AdaMuon as AdaMuon
    from optgen.generated.adamw_8bit import AdamW8bit as AdamW8bit
    from optgen.generated.adan import Adan as Adan
    from optgen.generated.adanorm import AdaNorm as AdaNorm
    from optgen.generated.adapnm import AdaPNM as AdaPNM
    from optgen.generated.adasmooth import AdaSmooth as AdaSmooth
    from optgen.generated.adatam import AdaTAM as AdaTAM
    from optgen.generated.ademamix import AdEMAMix as AdEMAMix
    from optgen.generated.adopt import ADOPT as ADOPT
    from optgen.generated.aggmo import AggMo as AggMo
    from optgen.generated.aida import Aida as Aida
    from optgen.generated.amos import Amos as Amos
    from optgen.generated.amuse import AMUSE as AMUSE
    from optgen.generated.ano import Ano as Ano
    from optgen.generated.apollo import APOLLO as APOLLO
    from optgen.generated.apollo_dqn import ApolloDQN as ApolloDQN
    from optgen.generated.aro import ARO as ARO
    from optgen.generated.avagrad import AvaGrad as AvaGrad
    from optgen.generated.bcos import BCOS as BCOS
    from optgen.generated.came import CAME as CAME
    from optgen.generated.cocob import COCOB as COCOB
    from optgen.generated.conda import Conda as Conda
    from optgen.generated.dadapt_adam import DAdaptAdam as DAdaptAdam
    from optgen.generated.diffgrad import DiffGrad as DiffGrad
    from optgen.generated.dion import Dion as Dion
    from optgen.generated.dog import DoG as DoG
    from optgen.generated.dowg import DoWG as DoWG
    from optgen.generated.dual_adam import DualAdam as DualAdam
    from optgen.generated.exadam import EXAdam as EXAdam
    from optgen.generated.fadam import FAdam as FAdam
    from optgen.generated.fira import Fira as Fira
    from optgen.generated.focus import FOCUS as FOCUS
    from optgen.generated.fromage import Fromage as Fromage
    from optgen.generated.ftrl import FTRL as FTRL
    from optgen.generated.galore import GaLore as GaLore
    from optgen.generated.grams import Grams as Grams
    from optgen.generated.gravity import Gravity as Gravity
    from optgen.generated.grokfast_adamw import GrokFastAdamW as GrokFastAdamW
    from optgen.generated.kahan_adamw import KahanAdamW as KahanAdamW
    from optgen.generated.kate import KATE as KATE
    from optgen.generated.kl_soap import KLSOAP as KLSOAP
    from optgen.generated.kron import Kron as Kron
    from optgen.generated.lamb import LAMB as LAMB
    from optgen.generated.laprop import LaProp as LaProp
    from optgen.generated.lars import LARS as LARS
    from optgen.generated.lion import Lion as Lion
    from optgen.generated.lion_8bit import Lion8bit as Lion8bit
    from optgen.generated.madgrad import MADGRAD as MADGRAD
    from optgen.generated.mano import Mano as Mano
    from optgen.generated.mars import MARS as MARS
    from optgen.generated.msvag import MSVAG as MSVAG
    from optgen.generated.muon_clip import MuonClip as MuonClip
    from optgen.generated.muon_h import MuonH as MuonH
    from optgen.generated.nadamw import NAdamW as NAdamW
    from optgen.generated.nero import Nero as Nero
    from optgen.generated.normuon import NorMuon as NorMuon
    from optgen.generated.novograd import NovoGrad as NovoGrad
    from optgen.generated.one_sided_shampoo import OneSidedShampoo as OneSidedShampoo
    from optgen.generated.optimistic_sgd import OptimisticSGD as OptimisticSGD
    from optgen.generated.padam import Padam as Padam
    from optgen.generated.pid import PID as PID
    from optgen.generated.pion import Pion as Pion
    from optgen.generated.pnm import PNM as PNM
    from optgen.generated.polar_muon import PolarMuon as PolarMuon
    from optgen.generated.prism import PRISM as PRISM
    from optgen.generated.prodigy import Prodigy as Prodigy
    from optgen.generated.qhadam import QHAdam as QHAdam
    from optgen.generated.qhm import QHM as QHM
    from optgen.generated.racs import RACS as RACS
    from optgen.generated.rmsprop_tf import RMSpropTF as RMSpropTF
    from optgen.generated.rose import Rose as Rose
    from optgen.generated.schedule_free_adamw import ScheduleFreeAdamW as ScheduleFreeAdamW
    from optgen.generated.schedule_free_radam import ScheduleFreeRAdam as ScheduleFreeRAdam
    from optgen.generated.schedule_free_sgd import ScheduleFreeSGD as ScheduleFreeSGD
    from optgen.generated.scion import Scion as Scion
    from optgen.generated.sgd_sai import SGDSaI as SGDSaI
    from optgen.generated.sgdp import SGDP as SGDP
    from optgen.generated.sgdw import SGDW as SGDW
    from optgen.generated.shampoo import Shampoo as Shampoo
    from optgen.generated.signum import Signum as Signum
    from optgen.generated.simplified_ademamix import SimplifiedAdEMAMix as SimplifiedAdEMAMix
    from optgen.generated.sm3 import SM3 as SM3
    from optgen.generated.soap import SOAP as SOAP
    from optgen.generated.sophia import Sophia as Sophia
    from optgen.generated.splus import SPlus as SPlus
    from optgen.generated.srmm import SRMM as SRMM
    from optgen.generated.stable_adamw import StableAdamW as StableAdamW
    from optgen.generated.stable_spam import StableSPAM as StableSPAM
    from optgen.generated.stosignsgd import StoSignSGD as StoSignSGD
    from optgen.generated.tam import TAM as TAM
    from optgen.generated.tiger import Tiger as Tiger
    from optgen.generated.vsgd import VSGD as VSGD
    from optgen.generated.yogi import Yogi as Yogi

PUBLISHED = {
    "accsgd": "AccSGD",
    "acprop": "ACProp",
    "adabelief": "AdaBelief",
    "adabound": "AdaBound",
    "adafactor_bv": "AdafactorBV",
    "adafactor_hf": "AdafactorHF",
    "adagc": "AdaGC",
    "adahessian": "AdaHessian",
    "adai": "Adai",
    "adam_h": "AdamH",
    "adam_mini": "AdamMini",
    "adamaxw": "AdaMaxW",
    "adamc": "AdamC",
    "adamg": "AdamG",
    "adamod": "AdaMod",
    "adamp": "AdamP",
    "adams": "AdamS",
    "adamuon": "AdaMuon",
    "adamw_8bit": "AdamW8bit",
    "adan": "Adan",
    "adanorm": "AdaNorm",
    "adapnm": "AdaPNM",
    "adasmooth": "AdaSmooth",
    "adatam": "AdaTAM",
    "ademamix": "AdEMAMix",
    "adopt": "ADOPT",
    "aggmo": "AggMo",
    "aida": "Aida",
    "amos": "Amos",
    "amuse": "AMUSE",
    "ano": "Ano",
    "apollo": "APOLLO",
    "apollo_dqn": "ApolloDQN",
    "aro": "ARO",
    "avagrad": "AvaGrad",
    "bcos": "BCOS",
    "came": "CAME",
    "cocob": "COCOB",
    "conda": "Conda",
    "dadapt_adam": "DAdaptAdam",
    "diffgrad": "DiffGrad",
    "dion": "Dion",
    "dog": "DoG",
    "dowg": "DoWG",
    "dual_adam": "DualAdam",
    "exadam": "EXAdam",
    "fadam": "FAdam",
    "fira": "Fira",
    "focus": "FOCUS",
    "fromage": "Fromage",
    "ftrl": "FTRL",
    "galore": "GaLore",
    "grams": "Grams",
    "gravity": "Gravity",
    "grokfast_adamw": "GrokFastAdamW",
    "kahan_adamw": "KahanAdamW",
    "kate": "KATE",
    "kl_soap": "KLSOAP",
    "kron": "Kron",
    "lamb": "LAMB",
    "laprop": "LaProp",
    "lars": "LARS",
    "lion": "Lion",
    "lion_8bit": "Lion8bit",
    "madgrad": "MADGRAD",
    "mano": "Mano",
    "mars": "MARS",
    "msvag": "MSVAG",
    "muon_clip": "MuonClip",
    "muon_h": "MuonH",
    "nadamw": "NAdamW",
    "nero": "Nero",
    "normuon": "NorMuon",
    "novograd": "NovoGrad",
    "one_sided_shampoo": "OneSidedShampoo",
    "optimistic_sgd": "OptimisticSGD",
    "padam": "Padam",
    "pid": "PID",
    "pion": "Pion",
    "pnm": "PNM",
    "polar_muon": "PolarMuon",
    "prism": "PRISM",
    "prodigy": "Prodigy",
    "qhadam": "QHAdam",
    "qhm": "QHM",
    "racs": "RACS",
    "rmsprop_tf": "RMSpropTF",
    "rose": "Rose",
    "schedule_free_adamw": "ScheduleFreeAdamW",
    "schedule_free_radam": "ScheduleFreeRAdam",
    "schedule_free_sgd": "ScheduleFreeSGD",
    "scion": "Scion",
    "sgd_sai": "SGDSaI",
    "sgdp": "SGDP",
    "sgdw": "SGDW",
    "shampoo": "Shampoo",
    "signum": "Signum",
    "simplified_ademamix": "SimplifiedAdEMAMix",
    "sm3": "SM3",
    "soap": "SOAP",
    "sophia": "Sophia",
    "splus": "SPlus",
    "srmm": "SRMM",
    "stable_adamw": "StableAdamW",
    "stable_spam": "StableSPAM",
    "stosignsgd": "StoSignSGD",
    "tam": "TAM",
    "tiger": "Tiger",
    "vsgd": "VSGD",
    "yogi": "Yogi",
}
"""The class name of each spec. A spec's name is also its name in the catalogue."""


def published_class(name: str) -> type[Optimizer]:
    """Import the class of a spec."""
    cls: type[Optimizer] = getattr(import_module(f"optgen.generated.{name}"), PUBLISHED[name])
    cls.__module__ = "optgen.optim"
    return cls
